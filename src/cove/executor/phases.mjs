// What the executor and its breaker share: the phase of the run, its number, and how often the executor has answered.

export const [PHASE, COUNT, PONG] = [0, 1, 2];
export const [IDLE, RUNNING, TERMINATING] = [0, 1, 2];
