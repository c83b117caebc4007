"""The loss scale over a run, why each step was skipped, and the rules on both."""
