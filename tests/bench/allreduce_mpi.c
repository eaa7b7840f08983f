/* One MPI all-reduce after the other, each timed on rank 0 between two barriers. Prints their seconds, a line
 * each. Arguments: floats, repetitions. Exit status 1: a sum was wrong. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    int rank, ranks, wrong = 0;
    int count = argc > 2 ? atoi(argv[1]) : 0, repetitions = argc > 2 ? atoi(argv[2]) : 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    float *values = malloc(sizeof *values * (size_t)count);
    for (int repetition = 0; values != NULL && repetition < repetitions; repetition++) {
        for (int i = 0; i < count; i++)
            values[i] = (float)(rank + i % 7);
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = MPI_Wtime();
        MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0)
            printf("%.6f\n", MPI_Wtime() - begin);
        for (int i = 0; i < count; i++)
            wrong |= values[i] != (float)(ranks * (ranks - 1) / 2 + ranks * (i % 7));
    }
    free(values);
    MPI_Finalize();
    return wrong || values == NULL;
}
