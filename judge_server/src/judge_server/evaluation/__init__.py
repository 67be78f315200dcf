"""How good a judge is: agreement with labels, calibration, cost, and what another judge would change."""
