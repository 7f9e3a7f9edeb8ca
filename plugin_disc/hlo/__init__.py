"""A reader of StableHLO, and of the MHLO that BladeDISC's compiler takes, into DISC's tensor program."""
