"""Which configuration of a sweep gets another seed, and when further seeds end."""
