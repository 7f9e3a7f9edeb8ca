"""Reads StableHLO, and the MHLO that BladeDISC's compiler takes, into DISC's tensor program."""
