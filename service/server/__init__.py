"""The process that serves: start-up checks, who leads, the live stack, and the composition root (:mod:`service.server.app`)."""
