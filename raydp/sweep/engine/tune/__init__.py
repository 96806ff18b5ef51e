"""Ray Tune's part: trials that follow their runs, rounds, callbacks, the result grid."""
