"""Attacks on the judge: a corpus of inputs, the cases made from it, and how many false accepts they bring."""
