/* SPDX-License-Identifier: Apache-2.0 */
/* Tables and numbers for people. */
#include "tool.h"

#include <libsmartcols.h>
#include <stdlib.h>
#include <string.h>

#define BUFFERS 16
#define BUFFER 64 /* bytes of one */

struct tool_table {
    struct libscols_table *rows;
    size_t columns;
};

tool_table *tool_table_create(const char *const *columns, size_t count)
{
    tool_table *table = tool_alloc(1, sizeof(*table));
    table->columns = count;
    table->rows = scols_new_table();
    if (!table->rows)
        tool_no_memory();
    /* The same bytes whether a person or a file reads them: no cutting at the terminal's edge. */
    scols_table_set_termforce(table->rows, SCOLS_TERMFORCE_NEVER);
    for (size_t i = 0; i < count; i++) {
        bool right = columns[i][0] == '>';
        if (!scols_table_new_column(table->rows, columns[i] + right, 0, right ? SCOLS_FL_RIGHT : 0))
            tool_no_memory();
    }
    return table;
}

void tool_table_row(tool_table *table, const char *const *cells)
{
    struct libscols_line *line = scols_table_new_line(table->rows, NULL);
    if (!line)
        tool_no_memory();
    for (size_t i = 0; i < table->columns; i++)
        if (scols_line_set_data(line, i, cells[i]) != 0)
            tool_no_memory();
}

void tool_table_print(tool_table *table)
{
    /* A failed write shows in ferror(stdout) at the end. */
    scols_print_table(table->rows);
    scols_unref_table(table->rows);
    free(table);
}

static char *next_buffer(void)
{
    static char buffers[BUFFERS][BUFFER];
    static size_t next;
    next = (next + 1) % BUFFERS;
    return buffers[next];
}

const char *tool_number(uint64_t number)
{
    char *end = next_buffer() + BUFFER - 1;
    *end = 0;
    for (int digits = 0; digits == 0 || number; digits++) {
        if (digits && digits % 3 == 0)
            *--end = ',';
        *--end = (char)('0' + number % 10);
        number /= 10;
    }
    return end;
}

const char *tool_count(uint64_t number, const char *one)
{
    size_t size = strlen(one);
    bool y = size && one[size - 1] == 'y' && number != 1;
    const char *digits = tool_number(number);
    char *text = next_buffer();
    snprintf(text, BUFFER, "%s %.*s%s", digits, (int)(size - y), one, number == 1 ? "" : y ? "ies" : "s");
    return text;
}

const char *tool_size(uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    char *text = next_buffer();
    size_t unit = 0;
    double size = (double)bytes;
    while (size >= 1024 && unit + 1 < sizeof(units) / sizeof(*units)) {
        size /= 1024;
        unit++;
    }
    snprintf(text, BUFFER, unit ? "%.2f %s" : "%.0f %s", size, units[unit]);
    return text;
}
