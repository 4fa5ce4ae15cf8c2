"""A fleet of real processes, the faults that are put into it, and the judge of what comes of that."""
