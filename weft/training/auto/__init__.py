"""Chooses the settings of a training from its data, the device and the time: the recipe `auto` and `weft train --time`."""
