"""A simulated cluster in virtual time that decides with the real core: state, ledger, fit, score and calibration."""
