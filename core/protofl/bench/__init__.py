"""The benchmark: seconds a round by stage and peak memory, beside a loop to compare with."""
