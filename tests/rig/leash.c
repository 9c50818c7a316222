/*
 * leash COMMAND...: runs a command. When the parent process ends in any way,
 * the command is killed. A Ctrl-C on the terminal does not reach the command.
 */
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == 1) return 1;
    setsid();
    execvp(argv[1], argv + 1);
    perror(argv[1]);
    return 127;
}
