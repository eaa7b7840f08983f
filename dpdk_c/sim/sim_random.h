/* sim/: the one source of chance. One seed makes one run, byte for byte, on every machine. Pure. */
#ifndef SIM_RANDOM_H
#define SIM_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

#define SIM_MILLION 1000000u

struct sim_random {
    uint64_t state;
};

/* The finalizer of splitmix64: every bit of the result depends on every bit of x. */
static inline uint64_t sim_mix(uint64_t x)
{
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static inline uint64_t sim_draw(struct sim_random *random)
{
    random->state += UINT64_C(0x9e3779b97f4a7c15);
    return sim_mix(random->state);
}

/* 0 .. n-1. */
static inline uint64_t sim_below(struct sim_random *random, uint64_t n)
{
    return sim_draw(random) % n;
}

/* Both ends included. */
static inline uint64_t sim_between(struct sim_random *random, uint64_t low, uint64_t high)
{
    return low + sim_below(random, high - low + 1);
}

/* True with this many chances in a million. Draws nothing if that is none: a fault that is not planned leaves
 * the rest of a run as it was. */
static inline bool sim_chance(struct sim_random *random, uint32_t ppm)
{
    return ppm > 0 && sim_below(random, SIM_MILLION) < ppm;
}

#endif
