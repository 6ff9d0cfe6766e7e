"""Checks and cleans parallel data: `weft data check` and `weft data clean`.

filters.py            what may be wrong with a pair, in the order in which it is looked for
learnt_statistics.py  what is learnt from the data itself: lengths, languages, which words translate which
duplicates.py         equal and nearly equal pairs, in little memory
check.py              counts every finding, removes nothing
clean.py              writes the pairs that pass all filters; continues after an interruption
"""
