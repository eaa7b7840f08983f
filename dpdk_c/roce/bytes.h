/* Accessors of big-endian integers, private to roce/. A wire integer is a struct of bytes (psc_roce.h), so it
 * has no alignment and cannot be used as a number by mistake; gcc turns each accessor into one load and a
 * byte swap. */
#ifndef PSC_ROCE_BYTES_H
#define PSC_ROCE_BYTES_H

#include "psc_roce.h"

static inline uint16_t psc_from_be16(struct psc_be16 wire)
{
    return (uint16_t)(wire.b[0] << 8 | wire.b[1]);
}

static inline uint32_t psc_from_be24(struct psc_be24 wire)
{
    return (uint32_t)wire.b[0] << 16 | (uint32_t)wire.b[1] << 8 | wire.b[2];
}

static inline uint32_t psc_from_be32(struct psc_be32 wire)
{
    return (uint32_t)wire.b[0] << 24 | (uint32_t)wire.b[1] << 16 | (uint32_t)wire.b[2] << 8 | wire.b[3];
}

static inline uint64_t psc_from_be64(struct psc_be64 wire)
{
    struct psc_be32 high = {{wire.b[0], wire.b[1], wire.b[2], wire.b[3]}};
    struct psc_be32 low = {{wire.b[4], wire.b[5], wire.b[6], wire.b[7]}};
    return (uint64_t)psc_from_be32(high) << 32 | psc_from_be32(low);
}

static inline struct psc_be16 psc_to_be16(uint16_t value)
{
    return (struct psc_be16){{(uint8_t)(value >> 8), (uint8_t)value}};
}

static inline struct psc_be24 psc_to_be24(uint32_t value)
{
    return (struct psc_be24){{(uint8_t)(value >> 16), (uint8_t)(value >> 8), (uint8_t)value}};
}

static inline struct psc_be32 psc_to_be32(uint32_t value)
{
    return (struct psc_be32){
        {(uint8_t)(value >> 24), (uint8_t)(value >> 16), (uint8_t)(value >> 8), (uint8_t)value}};
}

static inline struct psc_be64 psc_to_be64(uint64_t value)
{
    struct psc_be32 high = psc_to_be32((uint32_t)(value >> 32));
    struct psc_be32 low = psc_to_be32((uint32_t)value);
    return (struct psc_be64){
        {high.b[0], high.b[1], high.b[2], high.b[3], low.b[0], low.b[1], low.b[2], low.b[3]}};
}

#endif
