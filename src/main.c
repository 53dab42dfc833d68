/* `cairn`: the table of commands. */
#include "cli/commands.h"
#include "daemon/serve.h"

static const struct cli_cmd commands[] = {
    {"import", "FILE.gguf DIR", "turn a GGUF file into a model directory", cmd_import},
    {"inspect", "FILE", "list the tensors of a safetensors or GGUF file", cmd_inspect},
    {"serve", "", "run the server", cmd_serve},
    {"tokenize", "DIR", "turn standard input into token ids", cmd_tokenize},
    {"models", "[ls | add DIR | rm MODEL]", "list, register and remove models", cmd_models},
    {"load", "MODEL | CHECKPOINT", "make a model or a checkpoint answer", cmd_load},
    {"unload", "MODEL", "free the memory of a model", cmd_unload},
    {"chat", "", "talk to the resident model", cmd_chat},
    {"complete", "PROMPT", "let the resident model go on with a text", cmd_complete},
    {"save", "RUN_ID STEP", "write the weights as a checkpoint", cmd_save},
    {"lineage", "", "print the tree of checkpoints", cmd_lineage},
    {"status", "", "say which weights answer", cmd_status},
    {"verify", "DIR", "check a model or checkpoint directory offline", cmd_verify},
    {0},
};

int main(int argc, char **argv)
{
    struct cli cli = {.out = stdout, .err = stderr};

    return cli_main(&cli, commands, argc, argv);
}
