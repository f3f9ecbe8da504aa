/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target once over each file of the named folders: no libFuzzer, any compiler. */
#include "fuzz.h"

#include <dirent.h>
#include <sys/stat.h>

static size_t files;

static void replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    struct stat about;
    if (!file || fstat(fileno(file), &about) != 0) {
        perror(path);
        exit(1);
    }
    /* Exactly as long as the input, so that sanitizers see a read past its end. */
    size_t size = (size_t)about.st_size;
    uint8_t *data = malloc(size ? size : 1);
    if (!data || fread(data, 1, size, file) != size) {
        perror(path);
        exit(1);
    }
    fclose(file);
    LLVMFuzzerTestOneInput(data, size);
    free(data);
    files++;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        DIR *folder = opendir(argv[i]);
        if (!folder) {
            perror(argv[i]);
            return 1;
        }
        for (struct dirent *entry; (entry = readdir(folder));) {
            if (entry->d_name[0] == '.')
                continue;
            char path[4096];
            snprintf(path, sizeof(path), "%s/%s", argv[i], entry->d_name);
            fprintf(stderr, "%s\n", path); /* the last one is the culprit, if one is */
            replay_file(path);
        }
        closedir(folder);
    }
    printf("%zu inputs replayed\n", files);
    return files ? 0 : 1;
}
