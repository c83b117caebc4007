"""What is kept and what goes: the policy, thinning, deletion of runs, and the space given back."""
