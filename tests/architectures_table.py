import json, sys, time, traceback
import torch; torch.set_num_threads(1)
from battery import outcome_of, Outcome, WRONG
from tiny_models import text_classifiers, image_classifiers
names=sys.argv[1:]
for kinds in (text_classifiers(), image_classifiers()):
    for name, mt in kinds.items():
        if names and name not in names and mt not in names: continue
        t=time.process_time()
        try: o=outcome_of(name,mt)
        except Exception as e:
            tb=traceback.extract_tb(e.__traceback__)
            o=Outcome(name,WRONG,f"{type(e).__name__}: {str(e)[:300]!r} @ {[(f.filename.split('/')[-1],f.lineno) for f in tb[-6:]]}")
        print(o.result.upper(), name, f"{time.process_time()-t:.1f}s", o.said, o.layers, o.compared, o.left_out, flush=True)
