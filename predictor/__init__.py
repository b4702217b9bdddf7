"""Learning: how much work a job will be, from the history that a cluster already has.

``rows`` and ``recurrence`` say what a past job is and which jobs are "the same again"; ``history``, ``declared`` and
``throughput_table`` remember; ``features`` and ``dataset`` turn that into examples, causally; ``baselines``, ``forest`` and
``boosting`` predict, ``survival`` sees what still runs; ``intervals`` makes distributions of points and calibrates them; ``mix``,
``evidence`` and ``serving_run`` choose who serves, ``tracking`` keeps the ends of it in place; ``evaluation``, ``prequential``
and ``training`` measure and judge; ``artifacts`` and ``registry`` keep models; ``ladder``, ``drift`` and ``serving`` answer.
"""
