/* psc_bench_steps: counts the instructions that a program executes between the signals SIGUSR1 that it raises
 * at itself, by executing them one at a time (PTRACE_SINGLESTEP): exact where a machine has no counters of
 * its own, as virtual ones, and alike in every run. A repeated string instruction counts once for each
 * repetition. The program's output is its own; the count goes to stderr, one line with the number.
 *
 *   psc_bench_steps PROGRAM [ARGUMENT ...] */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static int await_stop(pid_t child)
{
    int status;

    if (waitpid(child, &status, __WALL) != child) {
        perror("waitpid");
        exit(EXIT_FAILURE);
    }
    return status;
}

/* Until the next SIGUSR1, which is not delivered. */
static uint64_t count_steps(pid_t child)
{
    uint64_t steps = 0;
    int signal = 0;

    for (;;) {
        if (ptrace(PTRACE_SINGLESTEP, child, NULL, (void *)(intptr_t)signal) != 0) {
            perror("PTRACE_SINGLESTEP");
            exit(EXIT_FAILURE);
        }
        int status = await_stop(child);
        if (!WIFSTOPPED(status) || WSTOPSIG(status) == SIGUSR1)
            return steps;
        signal = WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
        steps += signal == 0;
    }
}

int main(int argc, char **argv)
{
    uint64_t steps = 0;

    if (argc < 2)
        return EXIT_FAILURE;
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        execv(argv[1], argv + 1);
        _exit(127);
    }
    for (;;) {
        int status = await_stop(child);
        if (!WIFSTOPPED(status)) {
            fprintf(stderr, "%lu\n", steps);
            return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE;
        }
        int signal = WSTOPSIG(status);
        if (signal == SIGUSR1)
            steps += count_steps(child);
        ptrace(PTRACE_CONT, child, NULL,
               (void *)(intptr_t)(signal == SIGUSR1 || signal == SIGTRAP ? 0 : signal));
    }
}
