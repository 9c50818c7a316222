/* Between model.c and model_driver.c. */
#ifndef SIM_MODEL_H
#define SIM_MODEL_H
void model_drive(const char *url, unsigned seed);
#endif
