"""Which configuration of a sweep gets another seed, when further seeds end, and what else a decision would need."""
