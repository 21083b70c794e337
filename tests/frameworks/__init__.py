"""The frameworks that people have, on real servers. They are not in the environment of the other tests:
`make frameworks` runs these, and so does `make test-all`."""
