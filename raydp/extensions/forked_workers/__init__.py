"""Fork the workers of one machine from a process that has imported what they need; see docs/performance.md."""
