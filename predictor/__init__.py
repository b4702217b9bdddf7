"""Predicts how much work a job will be, from the history that a cluster already has.

``rows`` and ``recurrence`` define past jobs and which of them are runs of the same program. ``history``, ``declarations`` and
``throughput_table`` store what is learnt; ``features``, ``survival`` and ``dataset`` turn it into causal examples. ``baselines``,
``forest`` and ``boosting`` predict; ``intervals`` makes distributions and calibrates them, ``tracking`` keeps their coverage.
``candidate_scores``, ``mix`` and ``trust`` choose the serving model. ``evaluation``, ``prequential``, ``backtest``, ``training``
measure and judge; ``artifacts`` and ``registry`` keep models. ``serving`` is the live predictor: ``fallback`` predicts from
history alone, ``selection`` picks the answer, ``pending`` keeps it until the job ends, ``reported_totals`` revises it before.
"""
