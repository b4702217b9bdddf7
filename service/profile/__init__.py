"""What short runs of a program at different placements say: its speed, what stalls it, and which placement is worth it.

Pure: no clock, no network. ``sooner job profile`` runs the jobs.
"""
