"""A Gymnasium environment: a network learns to balance a pole, and is proved on episodes that it never learnt in."""

import holdfast as hf

result = hf.improve(
    env="CartPole-v1",  # or "module:function", or a function that makes an environment
    policy=hf.Network(),
    algorithm=hf.PPO(lr=3e-3, updates=60),  # as it comes, if left out
)
print(result)
print("version:", result.version)
print(f"steps that the pole stays up: {result.proof.comparisons['reward'].difference:+.0f}")
