"""Trackers: programs of others that show curves of runs. `train.trackers` names those that a run reports to."""
