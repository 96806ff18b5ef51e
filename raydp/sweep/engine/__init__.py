"""The runs on Ray: a queue, slots of worker groups, and the committer."""
