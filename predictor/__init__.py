"""Predicts how much work a job will be, from the history that a cluster already has.

``rows`` and ``recurrence`` define past jobs and which of them are runs of the same program, ``arguments`` what a command line
tells of a run. ``history``, ``declarations`` and ``throughput_table`` store what is learnt; ``features``, ``survival`` and
``dataset`` turn it into causal examples. ``baselines``, ``experts``, ``forest`` and ``boosting`` predict; ``aggregation``
combines them, ``conformal`` calibrates, ``intervals`` defines distributions. ``evaluation``, ``prequential``, ``training``
measure and judge; ``artifacts`` keeps models. ``serving`` is the live predictor: ``head_state`` is what it has
learnt of its experts, ``fallback`` the past in words, ``pending`` keeps a prediction until the job ends, ``reported``
revises it before, with ``loss_curves``.
"""
