/* Between model.c and model_driver.c. */
#ifndef SIM_MODEL_H
#define SIM_MODEL_H
#include <stddef.h>

void model_drive(const char *url, unsigned seed);

/* The i-th script's name, and its SHA1; NULL behind the last. */
const char *model_script(size_t i, const char **sha);
#endif
