"""The HTTP door: health, and the bulk read that feeds the pipeline."""
