# make charts: three SVGs from what the benches have left in the folder `data`.
# Colours that the colour-blind can tell apart; white behind them, so that they
# can be read on a dark page, too.

set encoding utf8
blue = "#0072B2"
green = "#009E73"
orange = "#D55E00"
grey = "#555555"
set border 3 linecolor rgb grey
set tics nomirror out scale 0.5 textcolor rgb grey
set grid ytics linecolor rgb "#E4E4E4" linetype 1 linewidth 1
set title font ",15"
size_of = "size 720,420"
term = "svg enhanced background rgb 'white' font 'sans-serif,13' "

# --- cost of a transfer against what is pending ------------------------------

set terminal @term @size_of
set output out . "/growth.svg"
set title "What moving one item costs the server"
set logscale xy
set xlabel "items pending"
set ylabel "µs of CPU, an item"
set xrange [800:1300000]
set yrange [0.8:50000]
set format x "10^{%T}"
set ytics ("1" 1, "10" 10, "100" 100, "1,000" 1000, "10,000" 10000)
set key top left reverse Left samplen 2.5 spacing 1.15
at_random = "< awk '$2 == 1' " . data . "/growth.dat"
in_order = "< awk '$2 == 0' " . data . "/growth.dat"
plot at_random using 1:5 with linespoints lw 2 pt 7 ps 0.7 \
         lc rgb orange title "published protocol, due at random", \
     at_random using 1:4 with linespoints lw 2 pt 5 ps 0.7 \
         lc rgb green title "delayq, Redisson's mirror, at random", \
     at_random using 1:3 with linespoints lw 2.5 pt 9 ps 0.8 \
         lc rgb blue title "delayq, at random", \
     in_order using 1:5 with lines lw 1.5 dt 3 lc rgb orange \
         title "dotted: due in the order of offer", \
     in_order using 1:4 with lines lw 1.5 dt 3 lc rgb green \
         notitle, \
     in_order using 1:3 with lines lw 1.5 dt 3 lc rgb blue \
         notitle

# --- throughput against batch ------------------------------------------------

reset
set border 3 linecolor rgb grey
set tics nomirror out scale 0.5 textcolor rgb grey
set grid ytics linecolor rgb "#E4E4E4" linetype 1 linewidth 1
set title font ",13"
set terminal @term @size_of
set output out . "/batch.svg"
set logscale xy
set xrange [0.7:1500]
set yrange [10000:1000000]
set xtics ("1" 1, "10" 10, "100" 100, "1,000" 1000)
set ytics ("10,000" 10000, "20,000" 20000, "50,000" 50000, \
    "100,000" 100000, "200,000" 200000, "500,000" 500000, \
    "1,000,000" 1000000)
set xlabel "items at a time"
set key bottom right reverse Left samplen 2
set multiplot layout 1,2
set title "Offered (published: pipelined)"
set ylabel "items a second, one client" offset 1
file = data . "/offer.dat"
plot file using 1:2 with linespoints lw 2.5 pt 9 ps 0.8 lc rgb blue \
         title "delayq", \
     "" using 1:3 with linespoints lw 2 pt 7 ps 0.7 lc rgb orange \
         title "published"
set title "Taken (published: transfer, LPOP)"
unset ylabel
file = data . "/take.dat"
plot file using 1:2 with linespoints lw 2.5 pt 9 ps 0.8 lc rgb blue \
         title "delayq", \
     "" using 1:3 with linespoints lw 2 pt 7 ps 0.7 lc rgb orange \
         title "published"
unset multiplot

# --- lateness ----------------------------------------------------------------

reset
set border 3 linecolor rgb grey
set tics nomirror out scale 0.5 textcolor rgb grey
set grid xtics ytics linecolor rgb "#E4E4E4" linetype 1 linewidth 1
set title font ",15"
set terminal @term @size_of
set output out . "/lateness.svg"
set title "How late an item is handed out"
set logscale xy
set xlabel "late by"
set ylabel "items that are later still"
set xrange [20:20000]
set yrange [0.04:110]
set xtics ("0.02" 20, "0.05" 50, "0.1 ms" 100, "0.2" 200, "0.5" 500, "1 ms" 1000, "2" 2000, \
    "5" 5000, "10 ms" 10000, "20" 20000, "50" 50000)
set ytics ("100 %%" 100, "50 %%" 50, "10 %%" 10, "1 %%" 1, "0.1 %%" 0.1)
set key top right reverse Left samplen 2.5
file = data . "/lateness.dat"
plot file using 1:($3 > 0 ? $3 : 1/0) with lines lw 2.5 lc rgb blue \
         title "delayq\\_take", \
     "" using 1:($5 > 0 ? $5 : 1/0) with lines lw 2 lc rgb orange \
         title "sleep until then, a bare script", \
     "" using 1:($7 > 0 ? $7 : 1/0) with lines lw 2 lc rgb grey \
         title "sleep until then, one PING"
