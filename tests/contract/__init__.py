"""What the parts promise each other: stores held by one suite, on real servers."""
