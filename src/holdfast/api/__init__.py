"""What a user writes: plain functions over the pipeline. `import holdfast` finds their names here when first used."""
