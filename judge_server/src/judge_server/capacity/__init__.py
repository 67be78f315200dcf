"""How many GPUs a judge needs: the work in a sample of responses, an engine's rates, and what follows from both."""
