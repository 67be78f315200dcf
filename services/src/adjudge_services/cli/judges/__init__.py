"""Commands about judges: how good they are, how they are calibrated and combined, their models and prompts."""
