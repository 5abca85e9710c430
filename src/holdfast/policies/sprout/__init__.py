"""The embedded language models: `sprout`, and `sprout-weak`, which has much to learn. Their weights lie here.

How they were made is `workloads.pretraining`; what they can do is on their card.
"""
