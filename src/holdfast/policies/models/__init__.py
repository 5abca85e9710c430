"""The language models in Hugging Face's format that ship with the package: `tiny-tools`, which has much to learn.

How it is made is `runs/train_tiny_tools.py`; what it can do is on its card. Sprout, our own format, is in `sprout`.
"""
