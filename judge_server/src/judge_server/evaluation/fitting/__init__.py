"""What is fitted on labelled verdicts: calibrations, the bands of cascades, the weights of panels."""
