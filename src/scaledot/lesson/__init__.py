"""The lesson on scaled dot-product attention, interactive, in Turkish and English.

A lesson is data: a folder that `content` reads and `check` validates. Answers to questions are
judged by `answers`, a learner's code by `judge`: `run` calls it in a process of its own and
`mistakes` names what it did by what it returns. `progress` keeps all of that in one file. Only
`page` knows marimo.
"""
