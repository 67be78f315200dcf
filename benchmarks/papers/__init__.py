"""The papers' own figures and numbers, simulated or computed again."""
