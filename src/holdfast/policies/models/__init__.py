"""The language models in Hugging Face's format that ship with the package: `tiny-qwen2`, which has much to learn.

How it is made is `runs/train_tiny_qwen2.py`; what it can do is on its card. Sprout, our own format, is in `sprout`.
"""
