"""Hierarchical document classifier: words are pooled by a masked max to sentences, sentences by a GRU to the document. Documents are cut to six
sentences. FAULT at step 130: the first documents of fewer than six sentences: a sentence that is padding has no word, so `masked_fill(-inf)` and
`max` give -inf for it, and the layer that reads it makes NaN of that. Report: tracel-ai/burn#4697 (NaN of a row that is masked altogether),
allenai/allennlp#3378 (masked max pooling). Cause: mask, step 130, at `word_pool` or what reads it. Right: rows that are masked altogether.
Wrong: learning rate, precision, scaler, eps."""
EXPECT = {"cause": ["mask"], "step": [130, 130], "place": "word_pool|sentence_norm", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "bfloat16", "GradScaler", "larger eps"], "right": "[Mm]ask"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(7); torch.set_num_threads(1)
VOCAB, TOPICS, SENTENCES, WORDS = 300, 6, 6, 8

class MaskedMax(nn.Module):
    def forward(self, values, mask):                 # (N, words, d), (N, words)
        return values.masked_fill(~mask.unsqueeze(-1), float("-inf")).max(1).values

class HierNet(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, d, padding_idx=0)
        self.word_conv = nn.Conv1d(d, d, 3, padding=1)
        self.word_pool = MaskedMax()
        self.sentence_norm = nn.LayerNorm(d)
        self.sentence_gru = nn.GRU(d, d, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * d, TOPICS)
    def forward(self, ids):
        n, s, w = ids.shape
        words = self.embed(ids.view(n * s, w))
        words = self.word_conv(words.transpose(1, 2)).transpose(1, 2).tanh()
        sentences = self.sentence_norm(self.word_pool(words, ids.view(n * s, w) != 0)).view(n, s, -1)
        states, _ = self.sentence_gru(sentences)
        return self.head(states.mean(1))

def documents(step, n=24):
    topic = torch.randint(0, TOPICS, (n,))
    ids = torch.randint(60, VOCAB, (n, SENTENCES, WORDS))
    ids[:, :3, 0] = 1 + topic[:, None] * 9 + torch.randint(0, 9, (n, 3))
    lengths = torch.randint(3, WORDS + 1, (n, SENTENCES, 1))
    ids = ids * (torch.arange(WORDS) < lengths)
    if step >= 130:
        count = torch.randint(3, SENTENCES + 1, (n, 1, 1))
        ids = ids * (torch.arange(SENTENCES)[:, None] < count)
    return ids, topic

net = HierNet()
opt = torch.optim.Adam(net.parameters(), 6e-3)
w = rangewatch.attach(net, opt)
for step in range(200):
    ids, topic = documents(step)
    loss = nn.functional.cross_entropy(net(ids), topic)
    opt.zero_grad(); loss.backward(); opt.step()
    w.log(loss=loss.item())
    if step % 20 == 0 or 128 <= step < 133: print(step, loss.item())
