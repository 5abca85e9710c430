"""Whether an endpoint is fit to be trained on."""
