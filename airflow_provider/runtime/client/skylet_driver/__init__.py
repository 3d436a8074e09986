"""The program that runs one job on a cluster of SkyPilot's, started by its agent (the skylet).

The modules of this package are sent as text, in one program (see ``skylet_program``), and run with the interpreter
that has SkyPilot: they import the standard library and each other, SkyPilot's job library late and by name, and keep
to the Python that old clusters have (3.8).

Two processes. The *keeper* is the one that the skylet started: it imports SkyPilot's job library, which takes seconds,
and writes into the jobs database what the *runner*, its child, tells it. The runner meanwhile runs setup and run, and
nothing of SkyPilot's is ever below it: all of its descendants are the job's and are swept at the end. When the runner
dies, the keeper sweeps what carries the job's marker and says FAILED_DRIVER; when the keeper dies, the kernel tells
the runner, which ends the job and leaves the verdict to the skylet, which misses the keeper. Nothing here turns a death
into a success.

The last word on a job (``end`` in its metadata) is written only when nothing of the job is left.

Secrets are in the program's text and nowhere else on disk: it removes its own file when it starts. Until then, which
is as long as the job waits in the queue, the skylet keeps that file with mode 0755 below ``~/.sky``: whoever may look
into that home can read it. After that they are in the memory of the two processes and in the job's environment, never
in arguments, scripts or logs. A job that is cancelled by our client while it waits, or whose driver our client finds
dead, has that file written over at once with the *janitor*, a program without secrets that removes itself and has the
last word on the job. What a job leaves that was cancelled by somebody else before it started, or whose node restarted,
stays until our client cancels it too.
"""
