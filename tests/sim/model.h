/* The functions of model_driver.c, for model.c. */
#ifndef SIM_MODEL_H
#define SIM_MODEL_H
#include <stddef.h>

void model_drive(const char *url, unsigned seed);

/* Returns the i-th script's name, and its SHA1 in *sha; NULL after the last. */
const char *model_script(size_t i, const char **sha);
#endif
