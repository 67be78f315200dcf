"""What a response's text contains: its thinking, its final answer, its loops, and where its tokens stand."""
