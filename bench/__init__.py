"""What a slot and a provision cost, as ratios against the least that could do the same. `make bench`; see README.md."""
